# SPDX-License-Identifier: Apache-2.0
"""`watch`: listens to the kernel's exec events, and moves processes outside their container's group into it."""
