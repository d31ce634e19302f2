# SPDX-License-Identifier: Apache-2.0
"""Gates on the nodes of a Ray cluster.

Ray finds a node by resources and labels, carries bytes there and tells when a node is
lost. Everything else is a process of ours on that node, which runs the code, the gate
and the trees that were sent to it by digest:

    executor.py   here: finds a node for a run, sends what it lacks, takes answers
    shim.py       there, inside Ray: starts our process and passes messages on
    node.py       there: keeps trees, runs units, as this machine would

Nothing of stackctl has to be installed on the nodes.
"""
