#compdef gpupipe
# Completion of gpupipe for zsh. In ~/.zshrc, after compinit: source <(gpupipe completion zsh)
_gpupipe() {
  local line text
  local -a whole open
  while IFS= read -r line; do
    text=${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}
    if [[ ${line%%$'\t'*} == *= ]]; then open+=("$text"); else whole+=("$text"); fi
  done < <("${(Q)words[1]}" complete --shell zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ! $#whole && ! $#open )); then _files; return; fi
  _describe -V gpupipe whole
  _describe -V gpupipe open -S ''
}
compdef _gpupipe gpupipe
