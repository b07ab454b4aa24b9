// Package embedded is a whole Perdure server inside the caller's process: the store, the engine,
// the watchdog, the webhooks and the API, without a socket. A program that imports it has durable
// runs in one file of its own. It uses them with the same client and the same workers as a server
// elsewhere:
//
//	srv, err := embedded.Open(embedded.Options{Dir: "data"})
//	…
//	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
//
// # How it works
//
// [Open] checks the options, opens the store, and makes the doorbell, the engine and the API over
// it. It finds or makes the platform key, and starts the services that run in the background.
// [Server.Transport] carries requests to the API within the process (transport.go). [Server.Close]
// ends the blocked calls, then the services, then the store.
//
// # What it is not
//
// It has no listener, no configuration file and no signal handling. The command "perdure serve" is
// this package behind a listener: see [Server.Handler], [Server.Bound] and [Server.TLSConfig].
//
// # Where to start reading
//
// [Open] in embedded.go wires everything. options.go has the settings and their checks, key.go the
// first key, nodes.go what concerns several nodes, signing.go and sealing.go the other keys.
//
// # Invariants
//
//   - The first start of a store makes one platform key, and later starts make none.
//   - A key file that other users can read refuses the start. InsecureKeyFile permits an admin.key.
//   - No error or log entry has a password or a key.
//   - A call in process has the same checks as one over a socket. Only the limits of connections
//     and the write deadlines do not apply.
package embedded
