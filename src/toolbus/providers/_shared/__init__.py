"""The parts that the adapters of several vendors share: errors, options, clients, reading of replies, schemas.

The modules know HTTP, JSON and the shapes that several servers have in common. They must not import an SDK, or know one
vendor's dialect: that belongs to the adapter of the vendor.
"""
