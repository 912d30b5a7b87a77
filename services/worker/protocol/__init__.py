"""The workers' side of the protocol without sockets, clocks or tasks: messages, events and `now` in, effects out.

    attempt     one attempt on this worker: whose it is, what was said of it, its output
    masters     sessions to masters: who is there, resume, reconcile, silence (R7, R8)
    tombstones  what must not start late (R5)
    decoding    sequences that decode here: output, preemption and resume, ends (R10, R11, R18)
    effects     what the cores ask of the edge

The cores are `services.prefill.handoff`, `services.decode.reservations` and, for the role `mixed`, `local` here.
"""
