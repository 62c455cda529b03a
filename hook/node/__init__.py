# SPDX-License-Identifier: Apache-2.0
"""This machine and its runtimes: hooks.d, configuration files,
running containers, programs and files.
"""
