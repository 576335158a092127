"""A page over the files that every run leaves. Readers turn files into plain values; `server` and `report` show them."""
