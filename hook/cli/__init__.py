# SPDX-License-Identifier: Apache-2.0
"""The commands for people: their options, help and output."""
