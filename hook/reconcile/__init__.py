# SPDX-License-Identifier: Apache-2.0
"""Repairs after lost or failed hooks: `diagnose` reads the node and chooses actions,
`act` does one of them.
"""
