# SPDX-License-Identifier: Apache-2.0
"""The lowest layer: the kernel's files, system calls, JSON, and the models of everything that is parsed. No policy."""
