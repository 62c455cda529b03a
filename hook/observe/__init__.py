# SPDX-License-Identifier: Apache-2.0
"""What people and Prometheus see: a snapshot of the node, without a lock, as text, JSON and metrics."""
