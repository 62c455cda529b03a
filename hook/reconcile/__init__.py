# SPDX-License-Identifier: Apache-2.0
"""Repairs what hooks could not do: a survey of the node, a plan, and its actions."""
