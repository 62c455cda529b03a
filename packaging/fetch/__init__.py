# SPDX-License-Identifier: Apache-2.0
"""Gets what building and testing take: `provision` the tools, `apt` Debian's packages,
`interpreters` the CPythons.
"""
