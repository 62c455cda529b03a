# SPDX-License-Identifier: Apache-2.0
"""Makes the ELF file: `cpython` builds a static CPython once, `freeze` compiles the modules,
`native` links it all.
"""
