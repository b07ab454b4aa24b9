// Package admin has the calls of operators: keys, tenants, dead letters and holds, pauses of queues,
// workers, recovery of processes, the watchdog's log, the audit log, backups. Programs that start runs
// and wait for them use package client alone.
//
//	c := client.New("http://127.0.0.1:7373", key, client.Options{})
//	ops := admin.New(c)
//	key, err := ops.CreateKey(ctx, api.CreateKey{Name: "ci", Scopes: []string{"runs:create"}})
//
// A [Client] is a view of a [client.Client]: it has the same connections, key, tenant and retries, and
// its errors are those of package client. Retries count once, as there. Calls about all tenants need a
// platform key; with one, admin.New(c.For("acme")) makes the others about another tenant.
//
// # Where to start reading
//
// admin.go has the type and its requests. The other files have one call after the other, a file for
// each noun.
package admin
