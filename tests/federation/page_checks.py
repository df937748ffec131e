"""Questions to a page that is open in a real browser, as JavaScript."""

# What is wrong with the page that is open, in words; the empty list is what a test wants.
INSPECT = """() => {
  const wrong = [], page = document.documentElement, wide = page.clientWidth;
  if (page.scrollWidth > wide) wrong.push(`the page is ${page.scrollWidth} wide, not ${wide}`);
  for (const one of document.querySelectorAll('main *')) {
    if (one.closest('.scroll, details:not([open])') && !one.matches('.scroll')) continue;
    const box = one.getBoundingClientRect();
    if (box.right > wide + 1 || box.left < -1) wrong.push(`${one.tagName} ${one.className} reaches ${box.right}`);
  }
  for (const figure of document.querySelectorAll('figure:has(> svg)')) {
    const svg = figure.querySelector(':scope > svg'), frame = svg.getBoundingClientRect();
    if (frame.width < 200 || frame.height < 60) wrong.push(`${figure.id} is ${frame.width} x ${frame.height}`);
    const ink = [...svg.querySelectorAll('path, circle, rect, line')].filter(shape => {
      const style = getComputedStyle(shape), box = shape.getBBox();
      const seen = style.fill !== 'none' || (style.stroke !== 'none' && parseFloat(style.strokeWidth) > 0);
      return seen && (box.width > 0.5 || box.height > 0.5);
    });
    if (ink.length < 3) wrong.push(`${figure.id} has only ${ink.length} shapes`);
    for (const shape of ink) {
      const box = shape.getBoundingClientRect();
      if (box.right > frame.right + 2 || box.left < frame.left - 2 || box.top < frame.top - 2 ||
          box.bottom > frame.bottom + 2) wrong.push(`${figure.id}: a ${shape.tagName} is outside`);
    }
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [words, box] of texts) {
      if (box.right > frame.right + 1 || box.left < frame.left - 1 || box.bottom > frame.bottom + 1 ||
          box.top < frame.top - 1) wrong.push(`${figure.id}: "${words}" is cut off`);
      if (box.height < 8) wrong.push(`${figure.id}: "${words}" is ${box.height} pixels high`);
    }
    texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) wrong.push(`${figure.id}: "${one}" and "${other}" overlap`);
    }));
    if ((svg.getAttribute('aria-label') || '').length < 20) wrong.push(`${figure.id} has no words`);
  }
  return wrong;
}"""

# The lowest contrast between words and what lies behind them (WCAG asks for 4.5).
CONTRAST = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = one => {
    const before = one.previousElementSibling;  // the cell that a number stands in
    if (one.matches('text.on')) return getComputedStyle(before).fill;
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const chosen = 'p, h1, h2, h3, figcaption, .tiles b, .tiles span, .legend li, td, th, svg text, summary';
  return Math.min(...[...document.querySelectorAll(chosen)].map(one => {
    const style = getComputedStyle(one), front = one.tagName === 'text' ? style.fill : style.color;
    const [a, b] = [light(front), light(behind(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
}"""
