# SPDX-License-Identifier: Apache-2.0
"""What puts the program, its hooks.d files and its units in place, and takes them away."""
