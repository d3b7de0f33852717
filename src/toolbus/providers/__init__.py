"""Models: adapters of vendors' wire formats to `toolbus.protocols.Provider`."""
