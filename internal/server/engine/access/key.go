package access

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// CreateKey creates an API key. The secret is given here and stored as a hash. With Once it is
// idempotent, but a repeated call does not give the secret: a caller that lost it revokes the key
// and creates another.
type CreateKey struct {
	Tenant   perdure.TenantID
	Name     string
	Scopes   []perdure.Scope
	Platform bool
	// TTL is zero for a key that does not expire.
	TTL perdure.Duration
	// Once is the idempotency key.
	Once string

	// Maker is the API key of the caller; the new key can't have more rights. Nil: an operator
	// creates it on the machine, and may give it any rights.
	Maker *perdure.Key
	// parent is the key that a session is opened with, and link is set for a login link.
	parent string
	link   bool

	Key perdure.Key
	// Secret is empty unless Created is set.
	Secret string
	// Created is false if the idempotency key was known.
	Created bool
}

func (*CreateKey) Needs() []store.Ref { return nil }

// Do creates the key.
func (op *CreateKey) Do(tx *kernel.Tx) error {
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
	// An earlier try of this batch may have set it.
	op.Secret = ""
	maker, err := makerOf(tx, op.Maker)
	if err != nil {
		return err
	}
	if maker != nil {
		made := op.newKey(tx.Now)
		if err := maker.MayMake(&made); err != nil {
			return err
		}
	}
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "key", op.Once, []any{op.Name, op.Scopes, op.Platform, op.TTL},
		func() (string, error) {
			if err := checkKeyQuota(tx, op.Tenant, false); err != nil {
				return "", err
			}
			if err := op.create(tx); err != nil {
				return "", err
			}
			return op.Key.ID, auditKey(tx, perdure.AuditKeyCreate, &op.Key)
		}, func(id string) error {
			k, ok, err := tx.DB.Keys.Get(id)
			if err == nil && !ok {
				err = kernel.NotFound("key")
			}
			op.Key = k
			return err
		})
	return err
}

// quotaOfKeys is the scope of the quota row that guards a tenant's number of keys and sessions.
const quotaOfKeys = "keys"

// checkKeyQuota refuses a key or a session above the tenant's quota. It writes the quota's row, so
// that concurrent calls conflict. It also removes the oldest keys that are no longer valid, if there
// are many: a tenant may make keys that last for a second.
func checkKeyQuota(tx *kernel.Tx, t perdure.TenantID, sessions bool) error {
	q, err := tx.DB.Webhooks.Quota(t, quotaOfKeys)
	if err != nil {
		return err
	}
	valid, err := tx.DB.Keys.Count(t, sessions, perdure.MaxKeys)
	if err != nil {
		return err
	}
	if valid >= perdure.MaxKeys {
		what := "keys: revoke one that is not needed"
		if sessions {
			what = "sessions and login links at a time"
		}
		return perdure.Errorf(perdure.CodeQuota, "a tenant may have %d %s", perdure.MaxKeys, what)
	}
	tx.DB.Webhooks.PutQuota(q)
	return nil
}

// newKey gives the key without its id and hash.
func (op *CreateKey) newKey(now perdure.Instant) perdure.Key {
	k := perdure.Key{Tenant: op.Tenant, Name: op.Name, Platform: op.Platform, Scopes: op.Scopes, CreatedAt: now,
		Parent: op.parent}
	if op.TTL > 0 {
		k.ExpiresAt = now.Add(time.Duration(op.TTL))
	}
	return k
}

// auditKey writes an audit entry about a key. Entries about platform keys belong to the platform,
// not to the key's tenant.
func auditKey(tx *kernel.Tx, action string, k *perdure.Key) error {
	t := k.Tenant
	if k.Platform {
		t = ""
	}
	return tx.Audit(t, action, k.ID, "name", k.Name, "scopes", k.Scopes, "platform", k.Platform,
		"expires_at", k.ExpiresAt)
}

// A secret begins with one of these words, and its hash covers them: a link can't be turned into a key.
const (
	keyPrefix  = "prd"
	linkPrefix = "prl"
)

// Generate draws the id and the secret of the key. The secret ends with a checksum, so that a
// mistyped one is refused without a look-up.
func (op *CreateKey) Generate(random io.Reader, now perdure.Instant) error {
	// 6 bytes are for the id, 32 for the secret.
	var raw [38]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return err
	}
	id := hex.EncodeToString(raw[:6])
	prefix := keyPrefix
	if op.link {
		prefix = linkPrefix
	}
	body := prefix + "_" + id + "_" + hex.EncodeToString(raw[6:])
	op.Secret = fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body)))
	op.Key = op.newKey(now)
	op.Key.ID, op.Key.Hash = id, store.Digest(op.Secret)
	return nil
}

// create generates the key and stages it, and its tenant if that is new.
func (op *CreateKey) create(tx *kernel.Tx) error {
	if err := op.Generate(tx.Engine.Random, tx.Now); err != nil {
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

// metaBootstrap is the name of the meta row that holds the id of the first platform key.
const metaBootstrap = "bootstrap"

// Bootstrap creates the first platform key of a store, with every scope. If there was one before,
// it creates none: of two nodes that start at once, one creates it. With Another, which the offline
// command sets, it creates one in any case.
type Bootstrap struct {
	// Tenant is the tenant that the key belongs to.
	Tenant perdure.TenantID
	Name   string
	// Scopes default to all.
	Scopes  []perdure.Scope
	TTL     perdure.Duration
	Another bool

	Key perdure.Key
	// Secret is empty if the store has had its first key.
	Secret string
}

func (*Bootstrap) Needs() []store.Ref { return nil }

// Do creates the key.
func (op *Bootstrap) Do(tx *kernel.Tx) error {
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

// RevokeKey revokes a key at once.
type RevokeKey struct {
	Tenant perdure.TenantID
	ID     string
	// Platform requires that the key is one of the platform.
	Platform bool

	// NotPlatform refuses platform keys, which share their tenant with other keys.
	NotPlatform bool

	Key perdure.Key
}

func (*RevokeKey) Needs() []store.Ref { return nil }

// Do revokes the key. Repeating it is no error.
func (op *RevokeKey) Do(tx *kernel.Tx) error {
	k, ok, err := tx.DB.Keys.Get(op.ID)
	if err != nil {
		return err
	}
	if !ok || k.Tenant != op.Tenant || op.Platform && !k.Platform || op.NotPlatform && k.Platform {
		return kernel.NotFound("key")
	}
	if k.RevokedAt == 0 {
		if err := auditKey(tx, perdure.AuditKeyRevoke, &k); err != nil {
			return err
		}
		sessions, err := tx.DB.Keys.Sessions(k.ID, tx.Now)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			revoke(tx, s)
		}
		k = revoke(tx, k)
	}
	op.Key = k
	return nil
}

// revoke stages the end of a key.
func revoke(tx *kernel.Tx, k perdure.Key) perdure.Key {
	k.RevokedAt = tx.Now
	tx.DB.Keys.Put(k)
	told(tx, k)
	return k
}

// told ends what goes on with a key that is revoked.
func told(tx *kernel.Tx, k perdure.Key) {
	tx.DB.After(func() { Keys{tx.Engine}.forget(k.ID) })
	// Connections that were opened with this key are closed.
	tx.Ring(doorbell.Keys())
}

// keyTTL is how long a cached key is used without reading it. A revocation on another node takes
// effect after this.
const keyTTL = time.Second

// keyCache holds the keys that were looked up.
type keyCache struct {
	// keys has API keys by id. A key that another node revokes is valid here for keyTTL, which
	// docs/security.md promises.
	keys kernel.Cache[string, cachedKey]

	mu sync.Mutex
	// own are the keys of callers inside this process, by id; see Keys.MakeOwn.
	own map[string]cachedKey

	// gone are called with the id of a key that is no longer valid.
	gone []func(id string)
}

var cachedKeys = kernel.NewPart(func(*kernel.Engine) *keyCache {
	c := &keyCache{own: make(map[string]cachedKey)}
	c.keys.TTL = keyTTL
	return c
})

// OnKeyGone has f called with the id of each key that is no longer valid, once this node knows.
func OnKeyGone(e *kernel.Engine, f func(id string)) {
	c := cachedKeys.Of(e)
	c.gone = append(c.gone, f)
}

// A cachedKey is the result of a look-up. ok is false if there is no such key.
type cachedKey struct {
	key perdure.Key
	ok  bool
}

// MakeOwn makes a platform key for a caller inside this process, and returns its secret. The key is not
// stored: it is listed nowhere, can't be used on another node, and ends with the process.
func (q Keys) MakeOwn(t perdure.TenantID, name string, scopes []perdure.Scope) (secret string, err error) {
	op := CreateKey{Tenant: t, Name: name, Scopes: scopes, Platform: true}
	if err := op.Generate(q.e.Random, q.e.Store().Now()); err != nil {
		return "", err
	}
	cachedKeys.Of(q.e).mu.Lock()
	defer cachedKeys.Of(q.e).mu.Unlock()
	cachedKeys.Of(q.e).own[op.Key.ID] = cachedKey{key: op.Key, ok: true}
	return op.Secret, nil
}

// own gives a key that MakeOwn has made.
func (q Keys) own(id string) (cachedKey, bool) {
	cachedKeys.Of(q.e).mu.Lock()
	defer cachedKeys.Of(q.e).mu.Unlock()
	c, ok := cachedKeys.Of(q.e).own[id]
	return c, ok
}

// isOwn tells whether MakeOwn has made a key.
func (q Keys) isOwn(id string) bool {
	_, ok := q.own(id)
	return ok
}

// instanceMark stands between the name of a worker inside a server and that server's instance. No
// name has it.
const instanceMark = "~"

// WorkerID gives the id of a worker as leases and lists have it: its name, followed by the server's
// instance if the worker has a key of MakeOwn.
func (q Keys) WorkerID(key, name string) string {
	if q.isOwn(key) {
		return name + instanceMark + q.e.Instance
	}
	return name
}

// CheckWorker checks the id of a worker that WorkerID has given.
func CheckWorker(e *kernel.Engine, id string) error {
	return perdure.CheckName("worker_id", strings.TrimSuffix(id, instanceMark+e.Instance))
}

// NodeOf gives the name of this server for a worker inside it. Other workers have none.
func NodeOf(e *kernel.Engine, worker string) string {
	if !strings.HasSuffix(worker, instanceMark+e.Instance) {
		return ""
	}
	return e.Node
}

// Authenticate gives the key of a secret, or an error with CodeNotFound. It looks the key up by its
// id and compares hashes in constant time. The secret of a login link is that of no key.
func (q Keys) Authenticate(ctx context.Context, secret string) (perdure.Key, error) {
	return q.authenticate(ctx, secret, false)
}

// AuthenticateLogin is Authenticate for a call that opens a session: a login link is good for that.
func (q Keys) AuthenticateLogin(ctx context.Context, secret string) (perdure.Key, error) {
	return q.authenticate(ctx, secret, true)
}

func (q Keys) authenticate(ctx context.Context, secret string, login bool) (perdure.Key, error) {
	id, link, ok := keyID(secret)
	if !ok || link && !login {
		return perdure.Key{}, kernel.NotFound("key")
	}
	now := q.e.Store().Now()
	c, err := q.lookUp(ctx, id, now)
	if err != nil {
		return perdure.Key{}, err
	}
	return c.open(secret, now)
}

// rememberFor is how long after its look-up a key is accepted by Remembered.
const rememberFor = 24 * time.Hour

// Remembered is Authenticate without reading the store, for when the store does not answer. It
// accepts a key that was valid at its last look-up and was not revoked on this node since. A
// revocation on another node is not known, so use it only for answers that show nothing of any run.
func (q Keys) Remembered(secret string) (perdure.Key, error) {
	id, link, ok := keyID(secret)
	now := q.e.Store().Now()
	c, since, _ := cachedKeys.Of(q.e).keys.Last(id)
	if !ok || link || now.Sub(since) > rememberFor {
		return perdure.Key{}, kernel.NotFound("key")
	}
	return c.open(secret, now)
}

// keyID reads the id of a key or login link from its secret, and checks the secret's checksum.
func keyID(secret string) (id string, link, ok bool) {
	prefix, rest, _ := strings.Cut(secret, "_")
	id, rest, _ = strings.Cut(rest, "_")
	_, sum, four := strings.Cut(rest, "_")
	link = prefix == linkPrefix
	if len(secret) > 200 || !four || strings.Contains(sum, "_") || prefix != keyPrefix && !link || len(id) != 12 {
		return "", false, false
	}
	body := secret[:len(secret)-len("_")-len(sum)]
	var want [4]byte
	binary.BigEndian.PutUint32(want[:], crc32.ChecksumIEEE([]byte(body)))
	var digits [8]byte
	hex.Encode(digits[:], want[:])
	// A mistyped secret is not worth a look-up.
	return id, link, sum == string(digits[:])
}

// open gives the key if the secret matches it and the key is valid.
func (c *cachedKey) open(secret string, now perdure.Instant) (perdure.Key, error) {
	if subtle.ConstantTimeCompare([]byte(store.Digest(secret)), []byte(c.key.Hash)) != 1 || !c.ok || !c.key.Valid(now) {
		return perdure.Key{}, kernel.NotFound("key")
	}
	return c.key, nil
}

// Check gives an error with CodeNotFound if an authenticated key is no longer valid.
func (q Keys) Check(ctx context.Context, id string) error {
	now := q.e.Store().Now()
	c, err := q.lookUp(ctx, id, now)
	if err == nil && (!c.ok || !c.key.Valid(now)) {
		err = kernel.NotFound("key")
	}
	return err
}

// lookUp reads a key from the cache or the store.
func (q Keys) lookUp(ctx context.Context, id string, now perdure.Instant) (cachedKey, error) {
	if c, ok := q.own(id); ok {
		return c, nil
	}
	return cachedKeys.Of(q.e).keys.Get(kernel.Look{Now: now}, id, func() (c cachedKey, err error) {
		err = q.e.Store().Keys(ctx, func(v *store.View) (err error) {
			c.key, c.ok, err = v.Keys.Get(id)
			if err == nil && c.ok && c.key.Parent != "" {
				// A session that another node opened while its key was revoked here is not revoked itself.
				parent, ok, err := v.Keys.Get(c.key.Parent)
				c.ok = ok && parent.Valid(now)
				return err
			}
			return err
		})
		return c, err
	})
}

// Invalid gives those of some keys that are no longer valid. It reads the store, not the cache.
func (q Keys) Invalid(ctx context.Context, ids []string) (gone []string, err error) {
	err = q.e.Store().Keys(ctx, func(v *store.View) error {
		keys, err := v.Keys.ByID(ids)
		if err != nil {
			return err
		}
		var parents []string
		for i := range keys {
			if keys[i].Parent != "" {
				parents = append(parents, keys[i].Parent)
			}
		}
		opened, err := v.Keys.ByID(parents)
		if err != nil {
			return err
		}
		valid, now := make(map[string]bool, len(keys)), q.e.Store().Now()
		for _, k := range opened {
			valid[k.ID] = k.Valid(now)
		}
		for _, k := range keys {
			valid[k.ID] = k.Valid(now) && (k.Parent == "" || valid[k.Parent])
		}
		for _, id := range ids {
			if !valid[id] && !q.isOwn(id) {
				gone = append(gone, id)
				q.forget(id)
			}
		}
		return nil
	})
	return gone, err
}

// forget removes a key from the cache, and ends the polls that stand by with it.
func (q Keys) forget(id string) {
	cachedKeys.Of(q.e).keys.Forget(id)
	for _, f := range cachedKeys.Of(q.e).gone {
		f(id)
	}
}

// Page reads a page of a tenant's keys by id. Platform keys are included only if platform is set.
func (q Keys) Page(
	ctx context.Context, t perdure.TenantID, platform bool, p kernel.Page,
) (list []perdure.Key, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Keys.Page(t, platform, p)
		return err
	})
	return list, next, err
}

// Keys looks up API keys, and caches them for a short time.
type Keys struct{ e *kernel.Engine }

// Weight counts a part of the keys that are counted: each is only a few bytes.
func (op *CreateKey) Weight() (rows, bytes int) { return 4 + perdure.MaxKeys/16, 1 << 10 }

// KeysOf gives the keys of an engine.
func KeysOf(e *kernel.Engine) Keys { return Keys{e} }

// makerOf returns the key whose rights limit a new key. A session may make what its parent may, as far
// as it has the scopes: its own end is no limit for keys that it makes.
func makerOf(tx *kernel.Tx, k *perdure.Key) (*perdure.Key, error) {
	if k == nil || k.Parent == "" {
		return k, nil
	}
	parent, ok, err := tx.DB.Keys.Get(k.Parent)
	if err != nil {
		return nil, err
	}
	if !ok || !parent.Valid(tx.Now) {
		return nil, kernel.NotFound("key")
	}
	parent.Scopes = k.Scopes
	return &parent, nil
}
