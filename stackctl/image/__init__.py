# SPDX-License-Identifier: Apache-2.0
"""Does an image contain exactly the composed tree?

Data goes one way: a *reference* names an image; a *source* (layout, archive, registry,
folder, wheel) yields its manifest, config and layers as verified bytes; *tar* and
*layers* turn a layer into entries; *view* applies the entries as a runtime would;
*compare* judges the result against an expected tree, and *compiled*, *settings*,
*startup* and *commands* say in *warn*ings what can run beside it; *attribute* says
which composition it is; *verify* puts the verdict together.
"""
