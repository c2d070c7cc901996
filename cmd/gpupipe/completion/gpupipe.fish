# Completion of gpupipe for fish. In ~/.config/fish/config.fish: gpupipe completion fish | source
function __gpupipe_complete
  set -l words (commandline -opc)
  set -a words (commandline -ct | string collect --allow-empty)
  $words[1] complete --shell fish -- $words[2..-1] 2>/dev/null
end
function __gpupipe_completes
  test -n "$(__gpupipe_complete | string collect)"
end
complete -c gpupipe -f -n __gpupipe_completes -k -a '(__gpupipe_complete)'
