"""The engine that the stores in SQLite and PostgreSQL share.

It knows the tables and the statements, written once in SQL that both dialects take, and `Database`, the interface of a
connection. It must not know a driver or a dialect: those are in the modules of the two stores.

Example:
    from toolbus.stores.sql.append import BEGIN_CONVERSATION
    from toolbus.stores.sql.database import Rows
    from toolbus.stores.sql.order import DELETE, DELETE_OF
    from toolbus.stores.sql.schema import FORMAT
    from toolbus.stores.sql.upkeep import OLD_CONVERSATIONS

    insert = Rows("INSERT INTO facts (request_id, seq) VALUES ", "(?, ?)", ("text", "whole"))
    print(insert)  # INSERT INTO facts (request_id, seq) VALUES (?, ?)
    print(BEGIN_CONVERSATION.types)  # ('text', 'blob')
    print(DELETE)  # DELETE FROM turns WHERE conversation_id IN (VALUES (?))
    print(str(DELETE_OF).count("?"), OLD_CONVERSATIONS.count("?"))  # 1 2
    print(FORMAT)  # 1
"""
