package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Which server is the primary.
//
// A server that was replaced by its standby and started again believes that it is the primary, and
// takes writes. The timeline tells the two apart: a number that every promotion raises. So
// each connection begins with the question for it, and the store judges the answer (Options.Judge)
// before anything is read or written.
//
// An address may name several servers. All of them are asked at once before a session connects, and
// the newest that the store accepts is used. The answers are valid for choiceFresh. Look asks again
// beside the work, because an old primary that stays reachable breaks no connection.
//
// When the store accepts a newer server, connections to the server before are not used any more:
// each has the number of its admission, and Server.admission is the latest.

const (
	// choiceFresh is how long the answers of all servers are used for further connections.
	choiceFresh = 2 * time.Second
	// askTimeout is how long one of several servers may take to answer.
	askTimeout = 2 * time.Second
	// LookEvery is the interval of Look.
	LookEvery = 5 * time.Second
)

// A Connection is one of another package to the same server, such as the doorbell's.
type (
	Connection = pgconn.PgConn
	Validation = pgconn.ValidateConnectFunc
)

// A Place says which server a connection leads to.
type Place struct {
	At       string // host and port
	System   string // the system identifier, which a primary and its standbys share
	Timeline int64  // rises with every promotion
	Clock    int64  // the server's clock, in microseconds
	Record   string // the first column of Options.Record; empty if there is no row, or no table
	Has      bool   // the table of Options.Record exists

	Standby, ReadOnly bool
}

// queryPlace asks a server which one it is. A standby has no timeline of its own. The name of the
// current file of the log begins with the timeline, in hexadecimal digits. pg_control_checkpoint would
// show that of the last checkpoint, which may be older than a promotion.
const queryPlace = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), " +
	"(SELECT system_identifier FROM pg_control_system()), " +
	"CASE WHEN pg_is_in_recovery() THEN '0' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, " +
	"(extract(epoch FROM clock_timestamp())*1000000)::bigint"

// ask asks a server which one it is.
func (p *Server) ask(ctx context.Context, conn *pgconn.PgConn, at string) (Place, error) {
	pl := Place{At: at}
	got, err := conn.Exec(ctx, queryPlace).ReadAll()
	if err != nil {
		return pl, err
	}
	row := got[0].Rows[0]
	pl.Standby, pl.ReadOnly, pl.System = string(row[0]) == "t", string(row[1]) == "on", string(row[2])
	if pl.Timeline, err = strconv.ParseInt(string(row[3]), 16, 64); err == nil {
		pl.Clock, err = strconv.ParseInt(string(row[4]), 10, 64)
	}
	if err != nil {
		return pl, fmt.Errorf("read the timeline of the server: %w", err)
	}
	if pl.Standby || p.opt.Table == "" {
		return pl, nil
	}
	got, err = conn.Exec(ctx, "SELECT to_regclass('"+p.opt.Table+"') IS NOT NULL").ReadAll()
	if err != nil {
		return pl, err
	}
	if pl.Has = string(got[0].Rows[0][0]) == "t"; !pl.Has {
		return pl, nil
	}
	got, err = conn.Exec(ctx, p.opt.Record).ReadAll()
	if err == nil && len(got[0].Rows) > 0 {
		pl.Record = string(got[0].Rows[0][0])
	}
	return pl, err
}

// Options say where a store is, and how to tell its servers apart.
type Options struct {
	// URL is the address, of the form postgres://….
	URL string
	// Tool names the connections as those of a tool, which is no node.
	Tool bool
	// Table is the table of Record, a query with one column and at most one row. Both are empty if a
	// place has no record.
	Table, Record string
	// Judge refuses a primary that is not the newest one as far as is known: see OldPrimary and Other.
	Judge func(Place) error
	// Newer tells whether a primary is newer than another one, and Same whether they may be one.
	Newer, Same func(a, b Place) bool
	// Admit is called for each new connection to a primary. It judges it and gives the number of its
	// admission, which rises with each newer primary. exec executes a statement on the connection, and
	// again asks once more.
	Admit func(pl Place, exec func(text string, args ...string) (int64, error),
		again func() (Place, error)) (int64, error)
	// Refused is told of a primary that is reachable and not used.
	Refused func(error)
}

// defaults completes options of a server whose primaries are not told apart.
func (opt *Options) defaults() {
	if opt.Judge == nil {
		opt.Judge = func(Place) error { return nil }
	}
	if opt.Newer == nil {
		opt.Newer = func(a, b Place) bool { return a.System == b.System && a.Timeline > b.Timeline }
	}
	if opt.Same == nil {
		opt.Same = func(a, b Place) bool { return a.System == b.System && a.Timeline == b.Timeline }
	}
	if opt.Admit == nil {
		opt.Admit = func(Place, func(string, ...string) (int64, error), func() (Place, error)) (int64, error) {
			return 1, nil
		}
	}
	if opt.Refused == nil {
		opt.Refused = func(error) {}
	}
}

// A host is one address of a server, with the ways to connect to it: with and without TLS.
type host struct {
	name string
	port uint16
	ways []*pgconn.FallbackConfig
}

// hostsOf gives the servers of an address in their order.
func hostsOf(cfg *pgconn.Config) (out []host) {
	first := &pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}
	for _, way := range append([]*pgconn.FallbackConfig{first}, cfg.Fallbacks...) {
		i := slices.IndexFunc(out, func(h host) bool { return h.name == way.Host && h.port == way.Port })
		if i < 0 {
			i, out = len(out), append(out, host{name: way.Host, port: way.Port})
		}
		out[i].ways = append(out[i].ways, way)
	}
	return out
}

// each gives the addresses behind the names of hosts. A name may stand for several servers. Those of
// one machine, such as localhost, are one.
func (p *Server) each(ctx context.Context) (out []host) {
	for _, h := range p.hosts {
		var ips []string
		if net.ParseIP(h.name) == nil && !strings.HasPrefix(h.name, "/") {
			ips, _ = p.cfg.LookupFunc(ctx, h.name) // connecting fails with the same error
		}
		if len(ips) < 2 || !slices.ContainsFunc(ips, func(ip string) bool { return !net.ParseIP(ip).IsLoopback() }) {
			out = append(out, h)
			continue
		}
		for _, ip := range ips {
			one := host{name: ip, port: h.port}
			for _, way := range h.ways {
				one.ways = append(one.ways, &pgconn.FallbackConfig{Host: ip, Port: h.port, TLSConfig: way.TLSConfig})
			}
			out = append(out, one)
		}
	}
	return out
}

func (h *host) address() string { return hostPort(h.name, h.port) }

// dial connects to one host with the settings of a session.
func (h *host) dial(ctx context.Context, cfg *pgconn.Config) (*pgconn.PgConn, error) {
	cfg = cfg.Copy()
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = h.name, h.port, h.ways[0].TLSConfig, h.ways[1:]
	return pgconn.ConnectConfig(ctx, cfg)
}

// A choice has the hosts that may be the primary, the best first.
type choice struct {
	mu    sync.Mutex
	hosts []host
	at    time.Time
}

// best gives the hosts to connect to, the best first. With a single one there is nothing to choose.
func (p *Server) best(ctx context.Context) ([]host, error) {
	all := p.each(ctx)
	if len(all) == 1 {
		return all, nil
	}
	select {
	case p.asking <- struct{}{}: // one asks for all sessions
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.choice.mu.Lock()
	hosts, at := p.choice.hosts, p.choice.at
	p.choice.mu.Unlock()
	if len(hosts) > 0 && time.Since(at) < choiceFresh {
		return hosts, nil
	}
	return p.survey(ctx, all)
}

// forget has the next session ask all servers again.
func (p *Server) forget() {
	p.choice.mu.Lock()
	defer p.choice.mu.Unlock()
	p.choice.hosts = nil
}

// dial connects a session to the newest server.
func (p *Server) dial(ctx context.Context, cfg *pgconn.Config) (*pgconn.PgConn, error) {
	hosts, err := p.best(ctx)
	var errs []error
	for _, h := range hosts {
		conn, err := h.dial(ctx, cfg)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	p.forget()
	return nil, errors.Join(append(errs, err)...)
}

// Survey asks every server of the address which one it is. Errors are those of single servers, by
// their address.
func (p *Server) Survey(ctx context.Context) (places []Place, failed map[string]error) {
	_, places, errs := p.askAll(ctx, p.each(ctx))
	failed = make(map[string]error)
	for at, err := range errs {
		failed[at] = p.explain(ErrLost, err)
	}
	return places, failed
}

// askAll asks hosts at once. Only those that answered are in the first two lists.
func (p *Server) askAll(ctx context.Context, all []host) (hosts []host, places []Place, failed map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cfg := p.cfg.Copy()
	cfg.ValidateConnect = nil
	found, errs := make([]Place, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, h := range all {
		wg.Go(func() {
			conn, err := h.dial(ctx, cfg)
			if err == nil {
				found[i], err = p.ask(ctx, conn, h.address())
				closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				conn.Close(closing)
				cancel()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	failed = make(map[string]error)
	for i, h := range all {
		if errs[i] != nil {
			failed[h.address()] = errs[i]
			continue
		}
		hosts, places = append(hosts, h), append(places, found[i])
	}
	return hosts, places, failed
}

// survey asks all servers, and keeps the choice. It tells Options.Refused about a primary that is
// not accepted.
func (p *Server) survey(ctx context.Context, all []host) ([]host, error) {
	hosts, places, failed := p.askAll(ctx, all)
	var order []int
	var refused, standby error
	for i, pl := range places {
		if pl.Standby {
			standby = pgconn.ErrReadOnlyConnection
			continue
		}
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p.opt.Newer(places[a], places[b]):
			return -1
		case p.opt.Newer(places[b], places[a]):
			return 1
		}
		return 0
	})
	var good []int
	for _, i := range order {
		pl, err := places[i], p.opt.Judge(places[i])
		switch {
		case err != nil || len(good) == 0:
		case p.opt.Newer(places[good[0]], pl):
			err = OldPrimary(pl.At, pl.Timeline, places[good[0]].Timeline, "that of "+places[good[0]].At)
		case !p.opt.Same(places[good[0]], pl):
			return nil, Other("PostgreSQL at %s and at %s are two databases that both take writes, and nothing says "+
				"which one is the store (stop the wrong one, or take it out of the address)", places[good[0]].At, pl.At)
		}
		if err == nil {
			good = append(good, i)
			continue
		}
		p.opt.Refused(err)
		refused = err
	}
	chosen := make([]host, len(good))
	for n, i := range good {
		chosen[n] = hosts[i]
	}
	p.choice.mu.Lock()
	p.choice.hosts, p.choice.at = chosen, time.Now()
	p.choice.mu.Unlock()
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case refused != nil:
		return nil, refused
	case standby != nil:
		return nil, standby
	}
	var errs []error
	for _, h := range all {
		errs = append(errs, failed[h.address()])
	}
	return nil, errors.Join(errs...)
}

// Look asks all servers of the address whether one is newer than the one in use, and has it admitted:
// connections to the server before are then not used any more. It does nothing for an address with a
// single server, where only a new connection can lead to another one.
func (p *Server) Look(ctx context.Context) error {
	all := p.each(ctx)
	if len(all) == 1 {
		return nil
	}
	select {
	case p.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	good, err := p.survey(ctx, all)
	<-p.asking
	if err != nil {
		return err
	}
	conn, err := good[0].dial(ctx, p.admitting(false))
	if err == nil {
		conn.Close(ctx)
	}
	return err
}

// admitting gives settings with which every connection is admitted. write says that a server without
// writes is of no use.
func (p *Server) admitting(write bool) *pgconn.Config {
	cfg := p.cfg.Copy()
	cfg.ValidateConnect = p.validate(write)
	return cfg
}

// admissionKey is where a connection has the number of its admission.
const admissionKey = "admission"

// validate refuses standbys, which may show older data than was acknowledged, and servers that the
// store does not admit.
func (p *Server) validate(write bool) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		pl, err := p.ask(ctx, conn, remote(conn))
		switch {
		case err != nil:
			return err
		case pl.Standby || write && pl.ReadOnly:
			return pgconn.ErrReadOnlyConnection
		}
		number, err := p.opt.Admit(pl, func(text string, args ...string) (int64, error) {
			values := make([][]byte, len(args))
			for i, a := range args {
				values[i] = []byte(a)
			}
			tag, err := conn.ExecParams(ctx, text, values, nil, nil, nil).Close()
			return tag.RowsAffected(), err
		}, func() (Place, error) { return p.ask(ctx, conn, pl.At) })
		if err != nil {
			return err
		}
		conn.CustomData()[admissionKey] = number
		for last := p.admission.Load(); number > last && !p.admission.CompareAndSwap(last, number); {
			last = p.admission.Load()
		}
		return nil
	}
}

// Validate is for connections of others to the same servers, such as the doorbell's.
func (p *Server) Validate(ctx context.Context, conn *pgconn.PgConn) error {
	return p.validate(true)(ctx, conn)
}

// Current tells whether a connection leads to the newest server that was admitted.
func (p *Server) Current(conn *pgconn.PgConn) bool {
	number, _ := conn.CustomData()[admissionKey].(int64)
	return number == p.admission.Load()
}

// remote gives the address of the server of a connection.
func remote(conn *pgconn.PgConn) string {
	if a := conn.Conn().RemoteAddr(); a != nil {
		return a.String()
	}
	return "an unknown address"
}
