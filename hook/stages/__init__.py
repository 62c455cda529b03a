# SPDX-License-Identifier: Apache-2.0
"""The hook itself: `entry` reads the command line and stdin, `create` is createRuntime, `remove` is poststop."""
