# SPDX-License-Identifier: Apache-2.0
"""Pull requests on GitHub: the audit of open ones, and the series as a stack of them.

`desk` looks (`look`, `remote`, `endpoint`) and says what the series wants (`stack`);
`plan` makes a list of actions of the two; `apply` does them.
"""
