package lossfs

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	blockSize = 4096
	rootID    = 1
	fileType  = syscall.S_IFREG
	dirType   = syscall.S_IFDIR
)

// A disk is the content of a file system twice: as programs see it, and as it is on the medium. What lies
// between the two is a list of changes in the order in which they were made, which a sync takes over to the
// medium and a power loss takes over in part. It knows nothing of FUSE.
type disk struct {
	mu         sync.Mutex
	syncNames  bool
	nodes      map[uint64]*node
	lastID     uint64
	lastHandle uint64
	changes    uint64    // how many there were: the order of all of them
	namings    []*naming // what directories have not synced
	dead       bool
	used       int64  // bytes in allocated blocks
	limit      int64  // how many there may be; 0: any number
	failIn     int    // which sync from now is going to fail; 0: none
	failName   string // of what; empty: of anything
	chance     *rand.Rand
}

// A node is a file or a directory.
type node struct {
	id      uint64
	mode    uint32
	changed time.Time
	known   uint64          // how often the kernel was told of it
	linked  bool            // it has a name …
	name    string          // … and this was the last
	opened  map[uint64]bool // by handle: whether it is still to be told of a sync that failed

	// Of a file.
	data    []byte // as programs see it
	safe    []byte // as it is on the medium
	pending []*change
	blocks  []bool // which are allocated

	// Of a directory.
	names     map[string]*node
	safeNames map[string]*node
}

func (n *node) isDir() bool { return n.mode&syscall.S_IFMT == dirType }

// A change is a write to a file, or a new size when there are no bytes.
type change struct {
	order uint64
	off   int64
	bytes []byte
}

// A naming is a change of names: what came to stand under a name, or what went.
type naming struct {
	order uint64
	of    *node
	from  *node // the directory it left; nil: it was made
	to    *node // the directory it came to; nil: it was removed
	name  string
}

func newDisk(syncNames bool) *disk {
	d := &disk{syncNames: syncNames, nodes: make(map[uint64]*node), chance: rand.New(rand.NewPCG(1, 1))}
	d.newNode(dirType | 0o755).linked = true
	return d
}

func (d *disk) newNode(mode uint32) *node {
	d.lastID++
	n := &node{id: d.lastID, mode: mode, changed: time.Now(), opened: make(map[uint64]bool)}
	if n.isDir() {
		n.names, n.safeNames = make(map[string]*node), make(map[string]*node)
	}
	d.nodes[n.id] = n
	return n
}

func (d *disk) order() uint64 {
	d.changes++
	return d.changes
}

// ---- files

func blocksOf(size int64) int64 { return (size + blockSize - 1) / blockSize }

// allocate gives a file the blocks of a stretch, or fails without a trace.
func (d *disk) allocate(n *node, off, end int64) syscall.Errno {
	first, last := off/blockSize, blocksOf(end)
	var need int64
	for i := first; i < last; i++ {
		if i >= int64(len(n.blocks)) || !n.blocks[i] {
			need += blockSize
		}
	}
	if need > 0 && d.limit > 0 && d.used+need > d.limit {
		return syscall.ENOSPC
	}
	if last > int64(len(n.blocks)) {
		n.blocks = append(n.blocks, make([]bool, last-int64(len(n.blocks)))...)
	}
	for i := first; i < last; i++ {
		n.blocks[i] = true
	}
	d.used += need
	return 0
}

func (d *disk) free(n *node, from int64) {
	for i := from; i < int64(len(n.blocks)); i++ {
		if n.blocks[i] {
			d.used -= blockSize
		}
	}
	n.blocks = n.blocks[:min(from, int64(len(n.blocks)))]
}

func (d *disk) write(n *node, off int64, p []byte) syscall.Errno {
	if d.dead {
		return syscall.EIO
	}
	if len(p) == 0 {
		return 0
	}
	if errno := d.allocate(n, off, off+int64(len(p))); errno != 0 {
		return errno
	}
	c := &change{d.order(), off, slices.Clone(p)}
	n.data = c.apply(n.data)
	n.pending = append(n.pending, c)
	n.changed = time.Now()
	return 0
}

func (d *disk) resize(n *node, size int64) syscall.Errno {
	if d.dead {
		return syscall.EIO
	}
	if size < int64(len(n.data)) {
		d.free(n, blocksOf(size))
	}
	c := &change{d.order(), size, nil}
	n.data = c.apply(n.data)
	n.pending = append(n.pending, c)
	n.changed = time.Now()
	return 0
}

// reserve is fallocate without flags, or with the one that keeps the size.
func (d *disk) reserve(n *node, off, end int64, keepSize bool) syscall.Errno {
	if d.dead {
		return syscall.EIO
	}
	if errno := d.allocate(n, off, end); errno != 0 {
		return errno
	}
	if end > int64(len(n.data)) && !keepSize {
		return d.resize(n, end)
	}
	return 0
}

// apply gives the content after the change.
func (c *change) apply(content []byte) []byte {
	if c.bytes == nil {
		return sized(content, c.off)
	}
	if end := c.off + int64(len(c.bytes)); end > int64(len(content)) {
		content = sized(content, end)
	}
	copy(content[c.off:], c.bytes)
	return content
}

func sized(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size]
	}
	old := len(content)
	content = slices.Grow(content, int(size)-old)[:size]
	clear(content[old:])
	return content
}

// ---- names

// name puts a node into a directory under a name, in place of what was there; from is the directory that it leaves.
func (d *disk) name(n, from, to *node, name string) {
	if from != nil {
		unname(from.names, n)
	}
	if old := to.names[name]; old != nil {
		old.linked = false
		d.collect(old)
	}
	to.names[name] = n
	n.linked, n.name = true, name
	to.changed = time.Now()
	d.namings = append(d.namings, &naming{d.order(), n, from, to, name})
}

func (d *disk) remove(from *node, name string) {
	n := from.names[name]
	delete(from.names, name)
	n.linked = false
	from.changed = time.Now()
	d.namings = append(d.namings, &naming{d.order(), n, from, nil, name})
	d.collect(n)
}

// collect drops a node that nobody can reach any more.
func (d *disk) collect(n *node) {
	if !n.linked && n.known == 0 {
		d.free(n, 0)
		delete(d.nodes, n.id)
	}
}

func unname(names map[string]*node, n *node) {
	for name, x := range names {
		if x == n {
			delete(names, name)
		}
	}
}

// apply takes a change of names over to the medium. A node has one name there at most, whichever of the
// changes before this one are missing.
func (r *naming) apply() {
	if r.from != nil {
		unname(r.from.safeNames, r.of)
	}
	if r.to != nil {
		r.to.safeNames[r.name] = r.of
	}
}

func (r *naming) concerns(n *node) bool { return r.from == n || r.to == n }

// ---- durability

// open gives a handle.
func (d *disk) open(n *node) uint64 {
	d.lastHandle++
	n.opened[d.lastHandle] = false
	return d.lastHandle
}

// sync makes a file's content durable, or a directory's names. A sync that fails leaves to chance what
// became of the changes, and forgets that there were any: the next one has nothing to do and succeeds, but
// that everybody who has the file open is told once. That is what Linux does.
func (d *disk) sync(n *node, handle uint64) syscall.Errno {
	if d.dead {
		return syscall.EIO
	}
	fails := false
	if d.failIn > 0 && (d.failName == "" || d.failName == n.name) {
		d.failIn--
		fails = d.failIn == 0
	}
	if fails {
		for h := range n.opened {
			n.opened[h] = true
		}
	}
	for _, c := range n.pending {
		if !fails || d.chance.IntN(2) == 0 {
			n.safe = c.apply(n.safe)
		}
	}
	n.pending = nil
	rest := d.namings[:0]
	for _, r := range d.namings {
		switch {
		case !r.concerns(n) && (!d.syncNames || r.of != n):
			rest = append(rest, r)
		case !fails || d.chance.IntN(2) == 0:
			r.apply()
		}
	}
	clear(d.namings[len(rest):])
	d.namings = rest
	if n.opened[handle] {
		n.opened[handle] = false
		return syscall.EIO
	}
	return 0
}

// powerLoss ends this disk: from now on it can be read and nothing else. It gives the disk that is there
// when the power is back.
func (d *disk) powerLoss(seed uint64) *disk {
	d.dead = true
	f := newFate(seed, d.changes)
	for _, r := range d.namings {
		if f.survives(r.order) {
			r.apply()
		}
	}
	d.namings = nil
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) { // in order: the seed decides, not the map
		n := d.nodes[id]
		for _, c := range n.pending {
			n.safe = f.apply(n.safe, c)
		}
		n.pending = nil
	}
	after := &disk{syncNames: d.syncNames, nodes: make(map[uint64]*node), limit: d.limit,
		chance: rand.New(rand.NewPCG(seed, 2))}
	after.restore(d.nodes[rootID])
	return after
}

// restore makes the node as it is on the medium, and all that is below it.
func (d *disk) restore(old *node) *node {
	n := d.newNode(old.mode)
	n.linked, n.changed = true, old.changed
	if !n.isDir() {
		n.data, n.safe = slices.Clone(old.safe), old.safe
		n.blocks = slices.Repeat([]bool{true}, int(blocksOf(int64(len(n.data)))))
		d.used += int64(len(n.blocks)) * blockSize
	}
	for _, name := range slices.Sorted(maps.Keys(old.safeNames)) {
		child := d.restore(old.safeNames[name])
		child.name = name
		n.names[name], n.safeNames[name] = child, child
	}
	return n
}
