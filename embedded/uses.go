package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/store"
)

// logUses logs a line about each thing that the server depends on, with its version.
func (opt *Options) logUses(s *Server, signer *perdure.Signer, sealKeys int) {
	if opt.Logger == nil {
		return
	}
	uses := func(what, is string, more ...slog.Attr) {
		attrs := append([]slog.Attr{slog.String("what", what), slog.String("is", is)}, more...)
		opt.Logger.LogAttrs(context.Background(), slog.LevelInfo, "uses", attrs...)
	}
	uses("store", opt.storeVersion(s.store))
	switch {
	case opt.Doorbell == "none" || opt.Doorbell == "" && opt.Store == "":
		uses("doorbell", "none: in the process")
	case opt.Doorbell == "":
		uses("doorbell", "LISTEN/NOTIFY on the store")
	default: // the version of a NATS server follows when it is connected
		uses("doorbell", doorbell.Mask(opt.Doorbell))
	}
	workspace := "none"
	if opt.Workspace != "" {
		workspace = opt.Workspace
		if full, err := filepath.Abs(workspace); err == nil {
			workspace = full
		}
	}
	uses("workspace", workspace)
	if s.cert == nil {
		uses("TLS", "off")
	} else {
		uses("TLS", "on", slog.Time("expires", s.cert.Expires()))
	}
	signs := "runs are not signed"
	if signer != nil {
		signs = "runs are signed with " + signer.KeyID()
	}
	uses("keys", fmt.Sprintf("%s, %d keys seal the root secret", signs, sealKeys))
}

// storeVersion names the database and its version. It asks once, at the start.
func (opt *Options) storeVersion(st *store.Store) string {
	query, name, at := "SELECT sqlite_version()", "SQLite", filepath.Join(opt.Dir, "perdure.db")
	if opt.Dir == "" {
		at = "memory"
	}
	if st.Shared() {
		query, name, at = "SELECT current_setting('server_version')", "PostgreSQL", store.Address(opt.Store)
	}
	version := "of an unknown version"
	err := st.Keep(context.Background(), func(v *store.View) error {
		return v.Rows(query, nil, func(scan func(...any) error) error { return scan(&version) })
	})
	if err != nil {
		version += ": " + err.Error()
	}
	return fmt.Sprintf("%s %s at %s", name, version, at)
}
