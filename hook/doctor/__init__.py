# SPDX-License-Identifier: Apache-2.0
"""What checks a node and suggests fixes."""
