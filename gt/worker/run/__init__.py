"""What runs programs on a worker: the store, lowering, generated code, tiers, compiling, collectives.

Law: nothing here knows of messages (gt/worker/core.py and its neighbours) or imports an engine (gt/worker/engines/).
"""
