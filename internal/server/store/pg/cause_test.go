package pg

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// TestCauseComesFirst: the error of a connection that can't be made begins with the cause, whatever
// was tried before, and says what to do.
func TestCauseComesFirst(t *testing.T) {
	t.Parallel()
	admin := pgtest.New(t)
	role := "limited_" + strings.ToLower(t.Name())
	for _, sql := range []string{"DROP ROLE IF EXISTS " + role,
		"CREATE ROLE " + role + " LOGIN PASSWORD 'p' CONNECTION LIMIT 0"} {
		execute(t, admin, sql)
	}
	t.Cleanup(func() { execute(t, admin, "DROP ROLE "+role) })
	base, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	// sslmode=prefer makes the driver try with TLS and without: two errors.
	at := func(change func(*url.URL)) string {
		u := *base
		u.RawQuery = "sslmode=prefer"
		change(&u)
		return u.String()
	}
	for _, x := range []struct {
		name, url, want, todo string
		passes                bool
	}{
		{"password", at(func(u *url.URL) { u.User = url.UserPassword(base.User.Username(), "wrong") }),
			"wrong password: PostgreSQL at 127.0.0.1:", "check the password", false},
		{"role", at(func(u *url.URL) { u.User = url.UserPassword("nobody_here", "x") }),
			"wrong password: PostgreSQL at 127.0.0.1:", "refuses the user nobody_here", false},
		{"database", at(func(u *url.URL) { u.Path = "/nowhere" }),
			"no such database: PostgreSQL at 127.0.0.1:", "CREATE DATABASE nowhere", false},
		{"connections", at(func(u *url.URL) { u.User = url.UserPassword(role, "p") }),
			"too many connections at 127.0.0.1:", "a node of Perdure needs 21", true},
		{"TLS", at(func(u *url.URL) { u.RawQuery = "sslmode=require" }),
			"PostgreSQL at 127.0.0.1:", "speaks no TLS", true},
		{"port", at(func(u *url.URL) { u.Host = "127.0.0.1:1" }),
			"nothing listens at 127.0.0.1:1: PostgreSQL is stopped", "", true},
		{"name", at(func(u *url.URL) { u.Host = "nowhere.invalid:5432" }),
			"the name nowhere.invalid can't be found", "DNS", true},
		{"starting", at(func(u *url.URL) { u.Host = refusing(t, "57P03", "the database system is starting up") }),
			"PostgreSQL at 127.0.0.1:", "is not ready: the database system is starting up", true},
		{"slots", at(func(u *url.URL) { u.Host = refusing(t, "53300", "sorry, too many clients already") }),
			"too many connections at 127.0.0.1:", "raise max_connections", true},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := Open(Options{URL: x.url})
			if err == nil || !strings.HasPrefix(err.Error(), x.want) || !strings.Contains(err.Error(), x.todo) {
				t.Fatalf("error = %v\nwant it to begin with %q and to have %q", err, x.want, x.todo)
			}
			if Unreachable(err) != x.passes {
				t.Errorf("Unreachable = %t, want %t: %v", !x.passes, x.passes, err)
			}
		})
	}
}

// TestRefusedCertificateIsTheCause: an error of TLS verification is told as such.
func TestRefusedCertificateIsTheCause(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("tls error: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
	text := explanation("db:5432", "u", "d", err)
	if !strings.HasPrefix(text, "the certificate of PostgreSQL at db:5432 is not accepted") {
		t.Errorf("explanation = %s", text)
	}
	if passing(err) {
		t.Error("a refused certificate may be accepted later, want not")
	}
}

// refusing is the address of a server that refuses every connection with an error of PostgreSQL.
func refusing(t *testing.T, code, message string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go refuse(c, code, message)
		}
	}()
	return l.Addr().String()
}

// refuse answers a request for TLS with no, and the startup message with an error.
func refuse(c net.Conn, code, message string) {
	defer c.Close()
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	if head[4] == 0x04 && head[5] == 0xd2 { // SSLRequest
		c.Write([]byte{'N'})
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
	}
	rest := make([]byte, int(head[2])<<8|int(head[3]))
	if _, err := io.ReadFull(c, rest[:len(rest)-8]); err != nil {
		return
	}
	body := "SFATAL\x00VFATAL\x00C" + code + "\x00M" + message + "\x00\x00"
	n := len(body) + 4
	c.Write(append([]byte{'E', byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...))
}

// execute runs a statement on a connection of its own.
func execute(t *testing.T, address, sql string) {
	t.Helper()
	conn, err := pgconn.Connect(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), sql).ReadAll(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}
