package access

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A session is the login of a person in a browser: a key of its own that ends after some hours, and
// with the key that it was opened with. It has that key's scopes, or only those that read.
//
// A login link is good for ten minutes, and for opening one session. Its secret is that of no key. It
// has a row like a session, which is revoked in the transaction that opens the session. Opening one
// with another session revokes that one, too.

const (
	// sessionTTL is how long a session lasts, and linkTTL how long a login link is good for.
	sessionTTL = 12 * time.Hour
	linkTTL    = 10 * time.Minute
	// maxSessions bounds the sessions of a key. One more ends the oldest.
	maxSessions = 100
)

// OpenSession opens a session with a key, or makes a login link.
type OpenSession struct {
	// With is the key of the caller: an ordinary one, a link or another session.
	With     perdure.Key
	ReadOnly bool
	// Link is set for a login link.
	Link bool

	Key    perdure.Key
	Secret string
}

func (*OpenSession) Needs() []store.Ref { return nil }

// Do opens the session.
func (op *OpenSession) Do(tx *kernel.Tx) error {
	op.Key, op.Secret = perdure.Key{}, ""
	with, ok, err := tx.DB.Keys.Get(op.With.ID)
	if err != nil {
		return err
	}
	if !ok || !with.Valid(tx.Now) {
		return kernel.NotFound("key")
	}
	parent := with
	if with.Parent != "" {
		if parent, ok, err = tx.DB.Keys.Get(with.Parent); err != nil {
			return err
		}
		if !ok || !parent.Valid(tx.Now) {
			return kernel.NotFound("key")
		}
		if !op.Link {
			tx.DB.Keys.UseUp(with)
			told(tx, with)
		}
	}
	ttl := sessionTTL
	if op.Link {
		ttl = linkTTL
	}
	if parent.ExpiresAt != 0 {
		ttl = min(ttl, parent.ExpiresAt.Sub(tx.Now))
	}
	scopes := with.Scopes
	if op.ReadOnly {
		scopes = with.Reading()
	}
	open, err := tx.DB.Keys.Sessions(parent.ID, tx.Now)
	if err != nil {
		return err
	}
	open = slices.DeleteFunc(open, func(k perdure.Key) bool { return k.ID == with.ID }) // that one is used up
	for i := 0; i <= len(open)-maxSessions; i++ {
		revoke(tx, open[i])
	}
	if err := checkKeyQuota(tx, parent.Tenant, true); err != nil {
		return err
	}
	made := CreateKey{Tenant: parent.Tenant, Name: parent.Name, Scopes: scopes, Platform: parent.Platform,
		TTL: perdure.Duration(ttl), parent: parent.ID, link: op.Link}
	if err := made.create(tx); err != nil {
		return err
	}
	op.Key, op.Secret = made.Key, made.Secret
	return auditKey(tx, perdure.AuditSessionOpen, &op.Key)
}

// CloseSession ends a session. Other keys stay.
type CloseSession struct {
	Key perdure.Key
}

func (*CloseSession) Needs() []store.Ref { return nil }

// Do ends the session. Repeating it is no error.
func (op *CloseSession) Do(tx *kernel.Tx) error {
	k, ok, err := tx.DB.Keys.Get(op.Key.ID)
	if err != nil || !ok {
		return err
	}
	if k.Parent == "" {
		return perdure.Errorf(perdure.CodeWrongState, "this is a key, and no session: it is revoked with DELETE /keys")
	}
	if k.RevokedAt == 0 {
		revoke(tx, k)
	}
	return nil
}

// Weight counts a part of the sessions that are counted.
func (op *OpenSession) Weight() (rows, bytes int) { return 4 + perdure.MaxKeys/16, 1 << 10 }
