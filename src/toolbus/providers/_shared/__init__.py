"""The parts that the adapters of several vendors share: the frame of a request, errors, options, replies, schemas.

An adapter consists of three classes, each with a base here, and a function: a provider (`adapter.Adapter`), a builder
that reads the frames of the stream (`reply_parts.ReplyParts`), a translator that distinguishes errors
(`errors.ErrorTranslator`), and the function that makes the body of a request.

The modules know HTTP, JSON and the shapes that several servers have in common. They must not name an SDK, or know one
vendor's dialect: that belongs to the adapter of the vendor.
"""
