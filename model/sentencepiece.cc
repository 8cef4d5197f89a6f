#include "model/sentencepiece.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nibble::model {
namespace {

constexpr std::string_view kSpace = "\u2581";
constexpr uint32_t kEnd = UINT32_MAX;  // no neighbour

}  // namespace

// A run of the escaped text, [begin, begin + size); size 0 when merged away.
// It stands for bytes [text_begin, text_end) of the whole.
struct SentencePiece::Symbol {
  uint32_t begin;
  uint32_t size;
  uint32_t previous;
  uint32_t next;
  size_t text_begin;
  size_t text_end;
};

// A merge that was possible when it was queued.
struct SentencePiece::Candidate {
  float score;
  uint32_t left;
  uint32_t right;
  uint32_t size;  // of both
  bool operator<(const Candidate& other) const {
    return score < other.score || (score == other.score && left > other.left);
  }
};

struct SentencePiece::Work {
  explicit Work(const Fragment& fragment);
  std::string_view Text(const Symbol& symbol) const {
    return std::string_view(escaped).substr(symbol.begin, symbol.size);
  }
  void AddSymbol(std::string_view spelling, size_t text_begin, size_t text_end);

  std::string escaped;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

SentencePiece::Work::Work(const Fragment& fragment) {
  if (fragment.space_before) {
    AddSymbol(kSpace, fragment.offset, fragment.offset);
  }
  for (size_t at = 0; at < fragment.text.size();) {
    const size_t length = NextUtf8(fragment.text.substr(at)).length;
    const std::string_view character = fragment.text.substr(at, length);
    AddSymbol(character == " " ? kSpace : character, fragment.offset + at,
              fragment.offset + at + length);
    at += length;
  }
  if (!symbols.empty()) symbols.back().next = kEnd;
}

void SentencePiece::Work::AddSymbol(std::string_view spelling,
                                    size_t text_begin, size_t text_end) {
  const auto index = static_cast<uint32_t>(symbols.size());
  symbols.push_back({static_cast<uint32_t>(escaped.size()),
                     static_cast<uint32_t>(spelling.size()),
                     index == 0 ? kEnd : index - 1, index + 1, text_begin,
                     text_end});
  escaped += spelling;
}

SentencePiece::SentencePiece(const Vocabulary& vocabulary)
    : vocabulary_(vocabulary) {
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.IsPlain(id) && !vocabulary.spelling(id).empty()) {
      plain_.emplace(vocabulary.spelling(id), id);
    }
  }
}

void SentencePiece::PushPair(uint32_t left, Work& work) const {
  const Symbol& first = work.symbols[left];
  if (first.next == kEnd) return;
  const uint32_t size = first.size + work.symbols[first.next].size;
  const auto found =
      plain_.find(std::string_view(work.escaped).substr(first.begin, size));
  if (found == plain_.end()) return;
  work.heap.push_back(
      {vocabulary_.data().scores[found->second], left, first.next, size});
}

void SentencePiece::MergeAll(Work& work) const {
  std::vector<Symbol>& symbols = work.symbols;
  std::vector<Candidate>& heap = work.heap;
  for (uint32_t i = 0; i < symbols.size(); ++i) PushPair(i, work);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    // Outdated when either side has been merged since.
    if (left.size == 0 || right.size == 0 ||
        left.size + right.size != best.size) {
      continue;
    }
    left.size = best.size;
    left.text_end = right.text_end;
    left.next = right.next;
    right.size = 0;
    if (left.next != kEnd) symbols[left.next].previous = best.left;
    for (const uint32_t first : {left.previous, best.left}) {
      if (first == kEnd) continue;
      const size_t queued = heap.size();
      PushPair(first, work);
      if (heap.size() > queued) std::push_heap(heap.begin(), heap.end());
    }
  }
}

absl::Status SentencePiece::Emit(const Work& work, const Symbol& symbol,
                                 std::vector<TokenSpan>& out) const {
  const std::string_view text = work.Text(symbol);
  const auto found = plain_.find(text);
  if (found != plain_.end()) {
    out.push_back({found->second, symbol.text_begin, symbol.text_end});
    return absl::OkStatus();
  }
  const auto has_token = [&](char byte) {
    return vocabulary_.ByteToken(static_cast<uint8_t>(byte)) >= 0;
  };
  if (std::all_of(text.begin(), text.end(), has_token)) {
    for (size_t i = 0; i < text.size(); ++i) {
      out.push_back({vocabulary_.ByteToken(static_cast<uint8_t>(text[i])),
                     std::min(symbol.text_begin + i, symbol.text_end),
                     std::min(symbol.text_begin + i + 1, symbol.text_end)});
    }
    return absl::OkStatus();
  }
  const std::optional<int32_t> unknown = vocabulary_.data().unknown;
  if (!unknown.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: the vocabulary has no token for \"",
                     std::string(text), "\" at byte ", symbol.text_begin));
  }
  out.push_back({*unknown, symbol.text_begin, symbol.text_end});
  return absl::OkStatus();
}

absl::Status SentencePiece::Encode(const Fragment& fragment,
                                   std::vector<TokenSpan>& out) const {
  if (fragment.text.empty()) return absl::OkStatus();
  Work work(fragment);
  MergeAll(work);
  const size_t first = out.size();
  for (uint32_t i = 0; i != kEnd; i = work.symbols[i].next) {
    NIBBLE_RETURN_IF_ERROR(Emit(work, work.symbols[i], out));
    // A run of unknown characters is one unknown token.
    const size_t count = out.size();
    if (count >= first + 2 && vocabulary_.data().unknown == out[count - 1].id &&
        out[count - 2].id == out[count - 1].id) {
      out[count - 2].end = out[count - 1].end;
      out.pop_back();
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::model
