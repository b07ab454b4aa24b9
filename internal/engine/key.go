package engine

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// CreateKey makes a credential. Its secret is shown once, here, and stored as a hash. With Once it is idempotent, and
// the secret is shown the first time alone: whoever lost that answer revokes the credential and makes another.
type CreateKey struct {
	Tenant   perdure.TenantID
	Name     string
	Scopes   []perdure.Scope
	Platform bool
	TTL      perdure.Duration // zero: it does not expire
	Once     string           // the idempotency key

	// Maker is the key that makes this one, which can't give away more than it has; nil: an operator does, who may make any.
	Maker *perdure.Key

	Key     perdure.Key
	Secret  string // empty unless Created
	Created bool   // false: the idempotency key was known
}

func (*CreateKey) Needs() []store.Ref { return nil }

// Do makes the key.
func (op *CreateKey) Do(tx *Tx) error {
	if err := perdure.CheckName("name", op.Name); err != nil {
		return err
	}
	if err := perdure.CheckName("tenant", string(op.Tenant)); err != nil {
		return err
	}
	if op.TTL < 0 {
		return perdure.Invalid("ttl", "must not be negative")
	}
	if len(op.Scopes) == 0 {
		return perdure.Invalid("scopes", "a key without scopes allows nothing")
	}
	op.Secret = "" // of a try that was not written
	if op.Maker != nil {
		made := op.newKey(tx.Now)
		if err := op.Maker.MayMake(&made); err != nil {
			return err
		}
	}
	var err error
	op.Created, err = underKey(tx, op.Tenant, "key", op.Once, []any{op.Name, op.Scopes, op.Platform, op.TTL}, func() (string, error) {
		if err := op.create(tx); err != nil {
			return "", err
		}
		return op.Key.ID, auditKey(tx, perdure.AuditKeyCreate, &op.Key)
	}, func(id string) error {
		k, ok, err := tx.DB.Keys.Get(id)
		if err == nil && !ok {
			err = notFound("key")
		}
		op.Key = k
		return err
	})
	return err
}

// newKey is the key that is to be made, without its id and its secret.
func (op *CreateKey) newKey(now perdure.Instant) perdure.Key {
	k := perdure.Key{Tenant: op.Tenant, Name: op.Name, Platform: op.Platform, Scopes: op.Scopes, CreatedAt: now}
	if op.TTL > 0 {
		k.ExpiresAt = now.Add(time.Duration(op.TTL))
	}
	return k
}

// auditKey tells what was done to a key. A platform key is the platform's affair, whatever its tenant.
func auditKey(tx *Tx, action string, k *perdure.Key) error {
	t := k.Tenant
	if k.Platform {
		t = ""
	}
	return tx.audit(t, action, k.ID, "name", k.Name, "scopes", k.Scopes, "platform", k.Platform, "expires_at", k.ExpiresAt)
}

// generate makes the id and the secret of the key.
func (op *CreateKey) generate(random io.Reader, now perdure.Instant) error {
	var raw [38]byte // 6 of its id, 32 of its secret
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return err
	}
	id := hex.EncodeToString(raw[:6])
	body := "prd_" + id + "_" + hex.EncodeToString(raw[6:])
	op.Secret = fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body)))
	op.Key = op.newKey(now)
	op.Key.ID, op.Key.Hash = id, store.Digest(op.Secret)
	return nil
}

func (op *CreateKey) create(tx *Tx) error {
	if err := op.generate(tx.e.random, tx.Now); err != nil {
		return err
	}
	if _, ok, err := tx.DB.Tenants.Get(op.Tenant); err != nil {
		return err
	} else if !ok {
		tx.DB.Tenants.Put(store.TenantRow{ID: op.Tenant, CreatedAt: tx.Now})
	}
	tx.DB.Keys.Put(op.Key)
	return nil
}

// metaBootstrap names the first platform key of a store in its meta table.
const metaBootstrap = "bootstrap"

// Bootstrap makes the first platform key of a store, with every scope. A store that has had one gets none, whichever node asks:
// of two that start at once, one makes it. With Another it makes one all the same: that is the offline command.
type Bootstrap struct {
	Tenant  perdure.TenantID // that the key belongs to
	Name    string
	Scopes  []perdure.Scope // empty: all
	TTL     perdure.Duration
	Another bool

	Key    perdure.Key
	Secret string // empty: the store has had its first key
}

func (*Bootstrap) Needs() []store.Ref { return nil }

// Do makes the key.
func (op *Bootstrap) Do(tx *Tx) error {
	op.Key, op.Secret = perdure.Key{}, ""
	first, err := tx.DB.Meta.Get(metaBootstrap)
	if err != nil || first != "" && !op.Another {
		return err
	}
	made := CreateKey{Tenant: op.Tenant, Name: op.Name, Scopes: op.Scopes, TTL: op.TTL, Platform: true}
	if len(made.Scopes) == 0 {
		made.Scopes = perdure.Scopes
	}
	if err := perdure.CheckName("name", made.Name); err != nil {
		return err
	}
	if err := made.create(tx); err != nil {
		return err
	}
	if first == "" {
		tx.DB.Meta.Claim(metaBootstrap, made.Key.ID)
	}
	op.Key, op.Secret = made.Key, made.Secret
	return auditKey(tx, perdure.AuditKeyBootstrap, &op.Key)
}

// RevokeKey ends a key at once.
type RevokeKey struct {
	Tenant   perdure.TenantID
	ID       string
	Platform bool // the key has to be one of the platform

	// NotPlatform refuses keys of the platform, which share their tenant with other keys.
	NotPlatform bool

	Key perdure.Key
}

func (*RevokeKey) Needs() []store.Ref { return nil }

// Do revokes. Revoking again is no error.
func (op *RevokeKey) Do(tx *Tx) error {
	k, ok, err := tx.DB.Keys.Get(op.ID)
	if err != nil {
		return err
	}
	if !ok || k.Tenant != op.Tenant || op.Platform && !k.Platform || op.NotPlatform && k.Platform {
		return notFound("key")
	}
	if k.RevokedAt == 0 {
		if err := auditKey(tx, perdure.AuditKeyRevoke, &k); err != nil {
			return err
		}
		k.RevokedAt = tx.Now
		tx.DB.Keys.Put(k)
		tx.DB.After(func() { tx.e.Keys.forget(k.ID) })
		tx.ring(doorbell.Keys()) // whoever is attached with it is cut off
	}
	op.Key = k
	return nil
}

// A Probe changes nothing: that it can be decided says that the store can be used.
type probe struct{}

func (probe) Needs() []store.Ref { return nil }

// Do reads.
func (probe) Do(tx *Tx) error {
	_, _, err := tx.DB.Keys.Get("")
	return err
}

// keyTTL is how long a key is believed without looking: a revocation on another node counts after this.
const keyTTL = time.Second

type cachedKey struct {
	key   perdure.Key
	ok    bool
	until perdure.Instant
}

// Authenticate gives the key that a secret is, or an error with CodeNotFound. It looks a key up by its id and
// compares hashes in constant time.
func (q Keys) Authenticate(ctx context.Context, secret string) (perdure.Key, error) {
	id, ok := keyID(secret)
	if !ok {
		return perdure.Key{}, notFound("key")
	}
	now := q.e.store.Now()
	c, err := q.lookUp(ctx, id, now)
	if err != nil {
		return perdure.Key{}, err
	}
	return c.open(secret, now)
}

// rememberFor is how long ago a key that is remembered may have been looked up.
const rememberFor = 24 * time.Hour

// Remembered is Authenticate for when the store can't be asked: it gives a key that was valid when this process last looked, and that nobody
// has revoked here since. That another node has is not known, so that it opens nothing but what shows nothing of any run.
func (q Keys) Remembered(secret string) (perdure.Key, error) {
	id, ok := keyID(secret)
	now := q.e.store.Now()
	q.e.mu.Lock()
	c := q.e.keys[id]
	q.e.mu.Unlock()
	if !ok || now.Sub(c.until) > rememberFor {
		return perdure.Key{}, notFound("key")
	}
	return c.open(secret, now)
}

// keyID reads the id of a key from its secret.
func keyID(secret string) (id string, ok bool) {
	parts := strings.Split(secret, "_")
	if len(secret) > 200 || len(parts) != 4 || parts[0] != "prd" || len(parts[1]) != 12 {
		return "", false
	}
	body := secret[:strings.LastIndexByte(secret, '_')]
	return parts[1], fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(body))) == parts[3] // mistyped: not worth a look
}

// open gives the key if the secret is its own and it is valid.
func (c *cachedKey) open(secret string, now perdure.Instant) (perdure.Key, error) {
	if subtle.ConstantTimeCompare([]byte(store.Digest(secret)), []byte(c.key.Hash)) != 1 || !c.ok || !c.key.Valid(now) {
		return perdure.Key{}, notFound("key")
	}
	return c.key, nil
}

// Check gives an error with CodeNotFound if a key that was authenticated is valid no more.
func (q Keys) Check(ctx context.Context, id string) error {
	now := q.e.store.Now()
	c, err := q.lookUp(ctx, id, now)
	if err == nil && (!c.ok || !c.key.Valid(now)) {
		err = notFound("key")
	}
	return err
}

func (q Keys) lookUp(ctx context.Context, id string, now perdure.Instant) (cachedKey, error) {
	q.e.mu.Lock()
	c, ok := q.e.keys[id]
	revoked := q.e.revoked
	q.e.mu.Unlock()
	if ok && now < c.until {
		return c, nil
	}
	err := q.e.store.Keys(ctx, func(v *store.View) (err error) {
		c.key, c.ok, err = v.Keys.Get(id)
		return err
	})
	if err != nil {
		return c, err
	}
	c.until = now.Add(keyTTL)
	q.e.mu.Lock()
	defer q.e.mu.Unlock()
	if q.e.revoked != revoked {
		return c, nil // perhaps this one, after it was read
	}
	if len(q.e.keys) >= maxKnown {
		clear(q.e.keys)
	}
	q.e.keys[id] = c
	return c, nil
}

// Invalid gives those of some keys that are no longer valid. It looks, whatever was remembered.
func (q Keys) Invalid(ctx context.Context, ids []string) (gone []string, err error) {
	err = q.e.store.Keys(ctx, func(v *store.View) error {
		keys, err := v.Keys.ByID(ids)
		if err != nil {
			return err
		}
		valid := make(map[string]bool, len(keys))
		for i := range keys {
			valid[keys[i].ID] = keys[i].Valid(q.e.store.Now())
		}
		for _, id := range ids {
			if !valid[id] {
				gone = append(gone, id)
				q.forget(id)
			}
		}
		return nil
	})
	return gone, err
}

func (q Keys) forget(id string) {
	q.e.mu.Lock()
	defer q.e.mu.Unlock()
	delete(q.e.keys, id)
	q.e.revoked++
}

// Page reads a page of a tenant's keys by id, those of the platform only if they are wanted.
func (q Keys) Page(
	ctx context.Context, t perdure.TenantID, platform bool, p Page,
) (list []perdure.Key, next string, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		list, next, err = v.Keys.Page(t, platform, p)
		return err
	})
	return list, next, err
}
