# SPDX-License-Identifier: Apache-2.0
"""What a runtime starts: `entry` reads the command line and stdin, `create` is createRuntime, `remove` is poststop."""
