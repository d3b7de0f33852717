"""The engine that the stores in SQLite and PostgreSQL share.

It knows the tables and the statements, written once in SQL that both dialects take, and `Database`, the interface of a
connection. It must not know a driver or a dialect: those are in the modules of the two stores.
"""
