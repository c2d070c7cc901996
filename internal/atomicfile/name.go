package atomicfile

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// CheckName refuses a path that Windows would not give to a new file or folder, but take for a device (NUL), for a
// stream of another file (a:b) or for a shorter name (a.). Other systems accept any path.
func CheckName(path string) error {
	if runtime.GOOS != "windows" {
		return nil
	}
	if fault := windowsFault(path[len(filepath.VolumeName(path)):]); fault != "" {
		return fmt.Errorf("%s: %s, expected a name that Windows can give to a file", path, fault)
	}
	return nil
}

// windowsDevice matches the names that Windows keeps for devices, in any folder and with any ending.
var windowsDevice = regexp.MustCompile(`(?i)^(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(\.|$)`)

// windowsFault says why Windows cannot give a path without a volume to a file; "" if it can.
func windowsFault(path string) string {
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		switch last := name[len(name)-1]; {
		case name == "." || name == "..":
		case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || strings.ContainsRune(`<>:"|?*`, r) }):
			return fmt.Sprintf(`found %q with one of < > : " | ? * or a control character`, name)
		case windowsDevice.MatchString(name):
			return fmt.Sprintf("found %q, the name of a device", name)
		case last == '.' || last == ' ':
			return fmt.Sprintf("found %q, which ends in a dot or a space", name)
		}
	}
	return ""
}
