package lossfs

import (
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// files shows a disk to the kernel. Only the kernel changes it, so the kernel may remember all that it is
// told, and keeps byte ranges and flocks by itself.
type files struct {
	fuse.RawFileSystem // says ENOSYS to what is not here: links, extended attributes
	disk               *disk
}

const remember = time.Hour

func (f *files) String() string { return "lossfs" }

// lock gives the node of a request, with the disk locked.
func (f *files) lock(id uint64) (*node, func()) {
	f.disk.mu.Lock()
	return f.disk.nodes[id], f.disk.mu.Unlock
}

func attr(n *node, out *fuse.Attr) {
	out.Ino, out.Mode, out.Nlink, out.Blksize = n.id, n.mode, 1, blockSize
	out.Size = uint64(len(n.data))
	for _, b := range n.blocks {
		if b {
			out.Blocks += blockSize / 512
		}
	}
	out.SetTimes(&n.changed, &n.changed, &n.changed)
}

// entry tells the kernel of a node.
func entry(n *node, out *fuse.EntryOut) {
	n.known++
	out.NodeId = n.id
	out.SetEntryTimeout(remember)
	out.SetAttrTimeout(remember)
	attr(n, &out.Attr)
}

func (f *files) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, unlock := f.lock(h.NodeId)
	defer unlock()
	n := dir.names[name]
	if n == nil {
		return fuse.ENOENT
	}
	entry(n, out)
	return fuse.OK
}

func (f *files) Forget(id, times uint64) {
	n, unlock := f.lock(id)
	defer unlock()
	if n != nil {
		n.known -= times
		f.disk.collect(n)
	}
}

func (f *files) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	out.SetTimeout(remember)
	attr(n, &out.Attr)
	return fuse.OK
}

func (f *files) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if f.disk.dead {
		return fuse.EIO
	}
	if size, ok := in.GetSize(); ok {
		if errno := f.disk.resize(n, int64(size)); errno != 0 {
			return fuse.Status(errno)
		}
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = n.mode&syscall.S_IFMT | mode
	}
	if t, ok := in.GetMTime(); ok {
		n.changed = t
	}
	out.SetTimeout(remember)
	attr(n, &out.Attr)
	return fuse.OK
}

// ---- names

// add makes a node in a directory.
func (f *files) add(in *fuse.InHeader, name string, mode uint32, out *fuse.EntryOut) fuse.Status {
	dir, unlock := f.lock(in.NodeId)
	defer unlock()
	if f.disk.dead {
		return fuse.EIO
	}
	if dir.names[name] != nil {
		return fuse.Status(syscall.EEXIST)
	}
	n := f.disk.newNode(mode)
	f.disk.name(n, nil, dir, name)
	entry(n, out)
	return fuse.OK
}

func (f *files) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	status := f.add(&in.InHeader, name, fileType|in.Mode&^in.Umask&0o7777, &out.EntryOut)
	if status != fuse.OK {
		return status
	}
	return f.Open(cancel, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: out.NodeId}}, &out.OpenOut)
}

func (f *files) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.add(&in.InHeader, name, dirType|in.Mode&^in.Umask&0o7777, out)
}

func (f *files) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.remove(h, name)
}

func (f *files) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.remove(h, name)
}

func (f *files) remove(h *fuse.InHeader, name string) fuse.Status {
	dir, unlock := f.lock(h.NodeId)
	defer unlock()
	n := dir.names[name]
	switch {
	case f.disk.dead:
		return fuse.EIO
	case n == nil:
		return fuse.ENOENT
	case len(n.names) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	f.disk.remove(dir, name)
	return fuse.OK
}

func (f *files) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, unlock := f.lock(in.NodeId)
	defer unlock()
	to := f.disk.nodes[in.Newdir]
	n, old := from.names[oldName], to.names[newName]
	switch {
	case f.disk.dead:
		return fuse.EIO
	case in.Flags != 0:
		return fuse.EINVAL
	case n == nil:
		return fuse.ENOENT
	case n == old:
		return fuse.OK
	case old != nil && len(old.names) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	f.disk.name(n, from, to, newName)
	return fuse.OK
}

func (f *files) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.Open(cancel, in, out)
}

func (f *files) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	dir, unlock := f.lock(in.NodeId)
	defer unlock()
	for i, name := range slices.Sorted(maps.Keys(dir.names)) {
		n := dir.names[name]
		if uint64(i) >= in.Offset && !out.AddDirEntry(fuse.DirEntry{Name: name, Mode: n.mode, Ino: n.id,
			Off: uint64(i) + 1}) {
			break
		}
	}
	return fuse.OK
}

func (f *files) ReleaseDir(in *fuse.ReleaseIn) { f.Release(nil, in) }

// ---- content

func (f *files) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if f.disk.dead {
		return fuse.EIO
	}
	out.Fh, out.OpenFlags = f.disk.open(n), fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

// Read works on a dead disk too: a page of a shared mapping that can't be read would kill the program.
func (f *files) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if in.Offset >= uint64(len(n.data)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, n.data[in.Offset:])]), fuse.OK
}

func (f *files) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if errno := f.disk.write(n, int64(in.Offset), data); errno != 0 {
		return 0, fuse.Status(errno)
	}
	return uint32(len(data)), fuse.OK
}

func (f *files) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	if in.Mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	return fuse.Status(f.disk.reserve(n, int64(in.Offset), int64(in.Offset+in.Length), in.Mode != 0))
}

func (f *files) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

func (f *files) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	delete(n.opened, in.Fh)
}

func (f *files) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, unlock := f.lock(in.NodeId)
	defer unlock()
	return fuse.Status(f.disk.sync(n, in.Fh))
}

func (f *files) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return f.Fsync(cancel, in)
}

func (f *files) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	size := f.disk.limit
	if size == 0 {
		size = 1 << 40
	}
	out.Bsize, out.Frsize, out.NameLen = blockSize, blockSize, 255
	out.Blocks = uint64(size / blockSize)
	out.Bfree = uint64(max(0, size-f.disk.used) / blockSize)
	out.Bavail = out.Bfree
	return fuse.OK
}
