package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

func TestConfigCheckOfStoreAndDoorbell(t *testing.T) {
	const pg, bell = "postgres://perdure:hunter2@db:5432/perdure", "nats://perdure:hunter2@bus:4222"
	out, _ := mustRun(t, 0, "config", "check")
	has(t, out, "store             SQLite in the data folder\n", "doorbell          in the process\n")
	t.Setenv("PERDURE_STORE", pg)
	out, _ = mustRun(t, 0, "config", "check")
	has(t, out, "store             postgres://perdure:xxxxx@db:5432/perdure\n",
		"doorbell          LISTEN/NOTIFY on the store\n")
	more, _ := mustRun(t, 0, "config", "check", "--doorbell", bell, "--json")
	has(t, more, `"store": "postgres://perdure:xxxxx@db:5432/perdure"`, `"doorbell": "nats://perdure:xxxxx@bus:4222"`)
	file := writeFile(t, "store = \""+pg+"\"\ndoorbell = \""+bell+"\"\n")
	t.Setenv("PERDURE_STORE", "")
	same, _ := mustRun(t, 0, "config", "check", "--config", file, "--json")
	if same != more {
		t.Errorf("configuration by file:\n%s\nwant that by environment:\n%s", same, more)
	}
	t.Setenv("PERDURE_DOORBELL", "none")
	none, _ := mustRun(t, 0, "config", "check", "--config", file)
	has(t, none, "doorbell          none\n")
	_, errs := mustRun(t, 1, "config", "check", "--store", "perdure.db")
	has(t, errs, "store: perdure.db is not an address such as postgres://")
	_, more2 := mustRun(t, 1, "serve", "--doorbell", "amqp://u:hunter2@bus")
	has(t, more2, "doorbell: amqp://u:xxxxx@bus is no address that begins with nats://")
	if all := out + more + same + none + errs + more2; strings.Contains(all, "hunter2") {
		t.Errorf("config check printed a password: %s", all)
	}
}

func TestDoctorChecksStoreAndDoorbell(t *testing.T) {
	live(t)
	out, _ := mustRun(t, 0, "doctor")
	has(t, out, "ok   store            SQLite in the data folder\n", "ok   doorbell         in the process\n")
	pg := pgtest.New(t)
	out, _ = mustRun(t, 0, "doctor", "--store", pg)
	has(t, out, "ok   releases         no node is connected\n")
	has(t, out, "ok   store            postgres://", ": PostgreSQL ",
		"ok   doorbell         LISTEN/NOTIFY on the store: there and back in ")
	s := natstest.Start(t, natstest.Options{User: "u", Password: "hunter2"})
	out, _ = mustRun(t, 0, "doctor", "--store", pg, "--doorbell", s.URL())
	has(t, out, "ok   doorbell         nats://u:xxxxx@", "there and back in ")
	s.Kill()
	bad, _ := mustRun(t, 1, "doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/none", "--doorbell", s.URL())
	has(t, bad, "BAD  store ", "BAD  doorbell ", "nodes look by themselves")
	if strings.Contains(out+bad, "hunter2") {
		t.Errorf("doctor printed a password: %s%s", out, bad)
	}
}
