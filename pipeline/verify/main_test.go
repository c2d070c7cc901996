package verify

import (
	"os"
	"testing"

	"github.com/gpupipe/gpupipe/internal/gputest"
)

func TestMain(m *testing.M) { os.Exit(gputest.Main(m)) }
