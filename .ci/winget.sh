#!/usr/bin/env bash
# winget.sh VERSION [CHECKSUMS [FOLDER]]: writes winget's manifests of a release, for the archive of Windows that CHECKSUMS lists
# (build/release/checksums.txt), into FOLDER (build/release/winget). Without such an archive it writes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=$1 CHECKSUMS=${2:-build/release/checksums.txt} FOLDER=${3:-build/release/winget}
readonly ID=gpupipe.gpupipe SCHEMA=1.10.0 SITE=https://github.com/gpupipe/gpupipe

read -r sum name < <(grep -E "  gpupipe_.*_windows_amd64\.zip$" "$CHECKSUMS") || exit 0

# manifest KIND FILE: a file with the lines of standard input between those that every manifest has.
manifest() {
	cat >"$FOLDER/$2" <<-LINES
		# yaml-language-server: \$schema=https://aka.ms/winget-manifest.$1.$SCHEMA.schema.json
		PackageIdentifier: $ID
		PackageVersion: "${VERSION#v}"
		$(cat)
		ManifestType: $1
		ManifestVersion: $SCHEMA
	LINES
}

mkdir -p "$FOLDER"
manifest version $ID.yaml <<<"DefaultLocale: en-US"
manifest installer $ID.installer.yaml <<-LINES
	MinimumOSVersion: 10.0.17763.0
	InstallerType: zip
	NestedInstallerType: portable
	NestedInstallerFiles:
	  - RelativeFilePath: ${name%.zip}\\gpupipe.exe
	    PortableCommandAlias: gpupipe
	Installers:
	  - Architecture: x64
	    InstallerUrl: $SITE/releases/download/$VERSION/$name
	    InstallerSha256: ${sum^^}
LINES
manifest defaultLocale $ID.locale.en-US.yaml <<-LINES
	PackageLocale: en-US
	Publisher: gpupipe
	PublisherUrl: $SITE
	PackageName: gpupipe
	PackageUrl: $SITE
	License: Apache-2.0
	LicenseUrl: $SITE/blob/main/LICENSE
	ShortDescription: Trains transformer language models on GPUs
	Moniker: gpupipe
	Tags: [deep-learning, gpu, llm, webgpu]
LINES
