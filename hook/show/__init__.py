# SPDX-License-Identifier: Apache-2.0
"""Reads a snapshot of the node, without a lock, and shows it to people and to Prometheus as text, JSON and metrics."""
