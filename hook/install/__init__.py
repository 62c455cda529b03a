# SPDX-License-Identifier: Apache-2.0
"""Installs and removes the program, its hooks.d files and its units."""
