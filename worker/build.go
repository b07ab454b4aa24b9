package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"
)

// executableHash returns the beginning of the hash of this program's file, which is read once. It is
// empty if the file can't be read: the server then does not know the build.
var executableHash = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
})
