# SPDX-License-Identifier: Apache-2.0
"""What everything else uses: the kernel and its files, text and JSON, the models of all that is parsed. No policy."""
