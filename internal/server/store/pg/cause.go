package pg

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// NodeConnections is how many connections a node has at most: those of the store, two of the
// doorbell if it uses the same server, one for an audit or a backup, and one that asks about locks.
const NodeConnections = 21

// A connectError is a connection that could not be made. Its text begins with the cause and ends
// with what to do about it. The text of the driver, which may begin with an earlier try without or
// with TLS, is left out where the cause is known.
type connectError struct {
	text string
	kind error // ErrLost or ErrStandby
	err  error // may be nil
}

func (e *connectError) Error() string { return e.text }

func (e *connectError) Unwrap() []error {
	if e.err == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.err}
}

// explain gives the error of a connection that could not be made.
func (p *Server) explain(kind, err error) error {
	var known *connectError
	if errors.As(err, &known) {
		return known
	}
	return &connectError{explanation(p.Address(), p.cfg.User, p.cfg.Database, err), kind, err}
}

// AddressOf gives host and port of the servers in an address, without user and password.
func AddressOf(url string) string {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return "an unknown address"
	}
	return (&Server{cfg: cfg}).Address()
}

// Address gives host and port of the server, or of all servers that may be the primary.
func (p *Server) Address() string {
	list := []string{hostPort(p.cfg.Host, p.cfg.Port)}
	for _, f := range p.cfg.Fallbacks {
		// The driver has an entry with and one without TLS for the same address.
		if a := hostPort(f.Host, f.Port); a != list[len(list)-1] {
			list = append(list, a)
		}
	}
	return strings.Join(list, ",")
}

func hostPort(host string, port uint16) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

// explanation tells why a connection could not be made, and what to do.
func explanation(at, user, database string, err error) string {
	var refused *pgconn.PgError
	var name *net.DNSError
	switch {
	case errors.As(err, &refused):
		return refusal(at, user, database, refused)
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		return fmt.Sprintf("PostgreSQL at %s takes no writes: it is a standby, or default_transaction_read_only is on "+
			"(promote it, or name the primary)", at)
	case certificate(err) != nil:
		return fmt.Sprintf("the certificate of PostgreSQL at %s is not accepted: %v "+
			"(sslrootcert names the file of its authority, and the host has to be a name of the certificate)",
			at, certificate(err))
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return fmt.Sprintf("PostgreSQL at %s speaks no TLS, and sslmode asks for it (set ssl=on at the server; "+
			"sslmode=disable sends passwords in the clear)", at)
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Sprintf("the name %s can't be found (check the host in the address of the store, and DNS)",
			name.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nothing listens at %s: PostgreSQL is stopped, or its address is another one", at)
	case errors.Is(err, os.ErrDeadlineExceeded), timedOut(err):
		return fmt.Sprintf("PostgreSQL at %s does not answer: the machine is away, or a firewall is between", at)
	}
	return fmt.Sprintf("PostgreSQL at %s can't be reached: %v", at, err)
}

// refusal tells why a server has refused a connection.
func refusal(at, user, database string, e *pgconn.PgError) string {
	switch e.Code {
	case "53300":
		what := "of the server are in use (raise max_connections"
		switch {
		case strings.Contains(e.Message, "role"):
			what = fmt.Sprintf("of the role %s are in use (ALTER ROLE … CONNECTION LIMIT", user)
		case strings.Contains(e.Message, "database"):
			what = fmt.Sprintf("of the database %s are in use (ALTER DATABASE … CONNECTION LIMIT", database)
		}
		return fmt.Sprintf("too many connections at %s: all %s, or end other programs; a node of Perdure needs %d)",
			at, what, NodeConnections)
	case "28P01":
		return fmt.Sprintf("wrong password: PostgreSQL at %s refuses the user %s (check the password in the address "+
			"of the store)", at, user)
	case "28000":
		return fmt.Sprintf("PostgreSQL at %s does not let the user %s in: %s (create the role, or allow it in "+
			"pg_hba.conf)", at, user, e.Message)
	case "3D000":
		return fmt.Sprintf("no such database: PostgreSQL at %s has no %s (CREATE DATABASE %s OWNER %s)", at, database,
			database, user)
	case "42501":
		return fmt.Sprintf("PostgreSQL at %s does not let the user %s use the database %s: %s (GRANT CONNECT)", at,
			user, database, e.Message)
	case "57P03":
		return fmt.Sprintf("PostgreSQL at %s is not ready: %s (it takes connections when that is over)", at, e.Message)
	}
	return fmt.Sprintf("PostgreSQL at %s refuses connections: %s (SQLSTATE %s)", at, e.Message, e.Code)
}

// certificate gives the reason for which a server's certificate was not accepted, or nil.
func certificate(err error) error {
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) {
		return verification.Err
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return unknown
	case errors.As(err, &host):
		return host
	case errors.As(err, &invalid):
		return invalid
	}
	return nil
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
