// Package pgtest gives tests a real PostgreSQL: a private cluster that dies with the process that started
// it, and databases in it that nobody else uses. It is not a mock and not for production; nothing but tests
// and the command in with, which make runs, imports it.
//
// A test that needs a database calls New. One of many that need the same tables takes it from a Pool, which
// is much quicker. A test that stops, crashes or misconfigures the server starts a Cluster of its own.
//
// Text sorts as in en-US where PostgreSQL can do so, and not by its bytes, so that a query whose order
// depends on the collation shows it.
package pgtest
