# SPDX-License-Identifier: Apache-2.0
"""The records under /run: the truth about each key, how it changes, and what consumers see of it."""
