"""The site: keeps, shows, compares and ranks runs; an API to publish them. Needs the extra `site`."""
