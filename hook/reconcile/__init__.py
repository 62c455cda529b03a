# SPDX-License-Identifier: Apache-2.0
"""Repairs after lost or failed hooks: `survey` reads the node, `diagnose` chooses actions, `act` does one of them."""
