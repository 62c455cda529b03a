# SPDX-License-Identifier: Apache-2.0
"""The records under /run: the state of each key, how it changes, and the view of it that consumers read."""
