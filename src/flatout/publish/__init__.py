"""Publishing a record to a site: what is sent, with the redaction's work shown; the token; the sending itself."""
