#!/usr/bin/env bash
# formula.sh VERSION [CHECKSUMS]: prints the Homebrew formula of a release, for the archives of macOS and Linux that
# CHECKSUMS lists (build/release/checksums.txt).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=$1 CHECKSUMS=${2:-build/release/checksums.txt}

# archive SYSTEM PROCESSOR HOMEBREW-PROCESSOR: the lines for an archive, if there is one.
archive() {
	local sum name
	read -r sum name < <(grep -E "  gpupipe_.*_$1_$2\.tar\.gz$" "$CHECKSUMS") || return 0
	cat <<-LINES
	    on_$3 do
	      url "https://github.com/gpupipe/gpupipe/releases/download/$VERSION/$name"
	      sha256 "$sum"
	    end
	LINES
}

cat <<-FORMULA
class Gpupipe < Formula
  desc "Trains transformer language models on GPUs and CPUs"
  homepage "https://github.com/gpupipe/gpupipe"
  version "${VERSION#v}"
  license "Apache-2.0"

  on_macos do
    depends_on macos: :monterey
$(archive darwin arm64 arm; archive darwin amd64 intel)
  end

  on_linux do
$(archive linux arm64 arm; archive linux amd64 intel)
  end

  def install
    bin.install "gpupipe"
    man1.install "gpupipe.1"
    bash_completion.install "completion/gpupipe.bash" => "gpupipe"
    zsh_completion.install "completion/gpupipe.zsh" => "_gpupipe"
    fish_completion.install "completion/gpupipe.fish"
    doc.install "README.md", "CHANGELOG.md", "NOTICE"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/gpupipe --version")
  end
end
FORMULA
